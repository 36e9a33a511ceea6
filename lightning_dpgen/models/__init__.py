"""The models that are learned: networks stacked over k components, their losses, and the mixture that samples from them."""
