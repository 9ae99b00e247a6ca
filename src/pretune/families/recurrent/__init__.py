"""Recurrent families (AWD-LSTM, ELMo) and static word vectors."""
