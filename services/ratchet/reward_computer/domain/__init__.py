"""Pure rules of rewards: the function, normalisation, dense shares, and the folds that baselines come from."""
