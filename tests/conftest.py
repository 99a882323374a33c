"""The rules and fixtures of all tests are a plugin, so that they can be tested themselves."""

pytest_plugins = ["support.rules"]
