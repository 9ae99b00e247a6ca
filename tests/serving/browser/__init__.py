"""Tests that use the page of the server in a browser, as a person would."""
