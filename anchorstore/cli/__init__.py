"""The command `anchorstore`: one file a command, found through the table in main.py."""
