"""Run directories: their files, the tables made from them, and runs taken over from another
directory.
"""
