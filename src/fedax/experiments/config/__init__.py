"""Experiment files: TOML text whose keys know their line, the tables of a file, the experiment they
make.
"""
