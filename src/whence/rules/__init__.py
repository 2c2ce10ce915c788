"""What each op does with the signal on its way back; the engine runs these rules and knows none of them.

DeepLIFT (Shrikumar et al. 2017)
- `deeplift`: its table.
- `rescale`: Rescale for elementwise functions (the secant), maxima, and values that the data picks.
- `closed_forms`: Rescale for products, norms and softmax, exact and without quotients of small numbers.
- `attention`: the same for attention as one op, block by block.
- `path_integral`: for any other op, its gradient averaged along the line from the reference to the input.
- `reveal_cancel`: RevealCancel, which takes positive and negative parts apart.

LRP (Bach et al. 2015; Montavon et al. 2017, 2019; Chefer et al. 2021)
- `lrp`: its table for a composite, ops that hand relevance on, and eq. 1 for any op.
- `lrp_weights`: LRP-ε, LRP-γ, LRP-αβ, z⁺, z^B, w² and flat, for dense layers and convolutions.
- `lrp_sums`, `lrp_products`: skip connections, biases and masks; products of activations.
- `lrp_division`, `linear_maps`: stabilisers and what they lose; an op with weights as a linear map.
- `composites`: which of the rules in `lrp_weights` an op gets.
- `ledger`: what a pass lost, where and why.

AttnLRP (Achtibat et al. 2024) and CP-LRP (Ali et al. 2022)
- `attnlrp`: both tables.
"""
