"""Tickets: the file format, saving, loading and pushing, the model card, prediction, transformers integration.

May import models, data and the packages below them; loading a ticket imports neither scorers nor figures.
"""
