"""Every side effect: admission, barrier, close and settle, decisions, audit, tool packs."""
