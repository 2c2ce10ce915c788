"""Integrated gradients.

    integrated_gradients     the methods: along the straight line, along any path, averaged over baselines
    conductance              the same for modules and for units inside a model, and internal influence
    paths                    paths from baselines to the input, and the model's gradients along them
    adaptive                 when a row's integral is good enough, and which points it needs next
    doubling                 the same for smooth functions, in few passes
    chords                   the same for networks with kinks, between points
    refinement               all rows of a call, in passes full of what they need next

The quadrature rules are in `util/quadrature`.
"""
