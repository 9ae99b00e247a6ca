"""Objectives that read one text with an encoder and write another with a decoder."""
