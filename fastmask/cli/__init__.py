"""The command line: `fastmask demo`, `mask` and `info`. Never imported by `import fastmask`."""
