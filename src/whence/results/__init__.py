"""What an explanation gives back: Attribution, Comparison and Trace, how they are assembled, stored and doubted."""
