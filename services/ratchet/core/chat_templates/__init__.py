"""Chats under a model's chat template: rendered alike by the engine that answers and the learner that trains.

`ChatTemplate` renders messages and encodes what it renders; `ChatEncoder` finds which tokens of a logged conversation
the policy itself would write; `explain` counts, without training, what that would lose or teach by mistake. Needs
transformers, which the extras `engine` and `trainer` install.
"""
