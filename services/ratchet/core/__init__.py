"""What every part of Ratchet stands on: errors, contracts, rules, the service runtime, stores, data sets."""
