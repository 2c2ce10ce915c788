"""Methods that remove units of the input and look at the score.

occlusion      windows that slide over the input, or one unit at a time
shapley        mean contributions over all orders of the units
surrogate      linear models of the score: KernelSHAP and LIME
sparse         a sparse linear model, the lasso: few sources
own_parts      the user's similarity, sampling and linear model in LIME
coalitions     the score of each row with some of its units in place
growing        passes of language models that begin where something was removed
"""
