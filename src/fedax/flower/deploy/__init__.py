"""Deployment of an experiment as a Flower app: the folders of server and clients, and both sides'
programs.
"""
