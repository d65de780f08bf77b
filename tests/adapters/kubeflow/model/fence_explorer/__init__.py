# SPDX-License-Identifier: Apache-2.0
"""Every interleaving: the controller's own decisions in a small world of Kueue, JobSet, kubelets and users.

`world` holds the state, `cluster` and `users` what others do to it, `controllers` how decisions become writes, `views`
what the decisions see, `search` the search and its questions, `protocol` the decisions and the ways to spoil them.
`rules` names the rules of the protocol, `spoilt` takes each one out, most of them by a `blindness`.
"""
