"""Families of recurrent models (AWD-LSTM, ELMo) and static word vectors."""
