"""A small bank: a payment provider to try remote tools on, with a book of its own and switches for what goes wrong.

It shares nothing with the engine but the wire, on purpose: tests judge what really happened by its book.
"""
