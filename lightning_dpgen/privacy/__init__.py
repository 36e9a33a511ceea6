"""The spending of privacy: accesses, ledger, mechanisms (the only door to noise), accountant, plan, noise source."""
