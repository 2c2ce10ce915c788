"""Layer-wise relevance propagation and what builds on it.

lrp, attnlrp                 relevance of the inputs
transformer_attribution      methods on the relevance of attention maps
passes                       one forward pass under LRP's rules
reading                      the relevance of attention maps from such a pass
account                      what came from where to where and what was lost, for the receipt
"""
