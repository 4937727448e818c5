"""Experiments: their files (`config`), the papers' tables (`recipes`), run directories (`results`)
and their making (`running`).
"""
