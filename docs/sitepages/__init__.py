"""What the documentation site has besides the Markdown files of docs/: see docs/hooks.py."""
