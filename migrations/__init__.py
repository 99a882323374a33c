"""The database's schema, forward only: one chain of revisions per owner, so that services can live in databases of
their own. `chains` knows them and checks a database's level; `upgrade` moves it.
"""
