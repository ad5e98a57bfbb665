"""Language: a decoder-only transformer over the bytes of text."""
