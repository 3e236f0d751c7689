"""Tool packs: each module exports one `PACK`."""
