"""The networks of this package that private steps train, by the name of their model."""

from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.models.vae import StackedVAE

TRAINED = {"vae": StackedVAE, "rbm": StackedRBM, "wgan": StackedGenerator}
