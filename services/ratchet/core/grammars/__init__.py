"""Grammars that answers follow: made once, alike for the engine that samples and the learner that computes again.

A `Constraint` (`rules.constraints`) and a tokenizer give a `Grammar`, a `Grammar` and what is written so far give the
tokens that may follow. Compiling happens in a process apart, within bounds (`compiler_process`): what people send
decides how long it takes. Needs xgrammar, which the extras `engine` and `trainer` install.

The learner masks as the engine did: without the mask every ratio is wrong by the probability that was masked. The
proximal and the reference policy are masked alike. A constraint's meaning is vLLM's, also where OpenAI's differs.
"""
