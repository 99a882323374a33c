"""The memos' chain: the schema `memos`, with the memos and the mails about them."""
