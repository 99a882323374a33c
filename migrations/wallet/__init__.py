"""The wallet's chain: the schema `wallet`, in the database that `ferryman run wallet` works on."""
