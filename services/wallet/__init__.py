"""The wallet: takes and gives back money as payments ask it to, each operation once."""
