"""Methods that read attention.

    rollout, gradients, attcat     the methods: of maps, of maps and their gradients, of hidden states
    reading                        one pass over the model, in which each map is reduced as its gradient arrives
    attention_map                  the maps in one form, (rows, heads, query, key), whatever a model computes
    readout                        which positions of the last layer the score reads
    combine                        the read-out row through the layers, or one layer's map
    cross_attention                the rules of Chefer, Gur & Wolf 2021 for several modalities
    max_flow                       the maximum flow of Abnar & Zuidema 2020
    windows                        which tokens the positions of windows, blocks and merged patches stand for
    layout                         from positions to the inputs' tokens and patches

The later layer stands on the left of a product, so only the read-out row is multiplied through the layers, from the
last to the first. In models of several modalities (encoder and decoder, text and image) each call acts on its queries'
positions and reads its keys'.
"""
