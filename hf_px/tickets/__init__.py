"""Tickets: the file format, saving, loading and sharing, the card, and what a ticket predicts.

Imports models, data and what lies below them; figures for the card.
"""
