"""Tokens in a program's signature: the program creates the first token of each chain itself.

Callers pass no tokens, or empty arrays in their places, as JAX does to a plugin.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.ir.dense import Dense
from weft.ir.module import Module, Node, Region, Value, apply
from weft.ir.rebuild import Rebuild
from weft.ir.types import BOOL, TensorType, TokenType
from weft.ops.control import CreateToken
from weft.ops.shape import Constant


def keep_tokens_inside(module: Module) -> Module:
    """The module without tokens in the signature of main."""
    main = module.functions.get("main")
    if main is None:
        return module
    args, results = main.body.args, main.body.results
    if not any(isinstance(v.type, TokenType) for v in (*args, *results)):
        return module
    kept_args = [n for n, v in enumerate(args) if not isinstance(v.type, TokenType)]
    kept_results = [n for n, v in enumerate(results) if not isinstance(v.type, TokenType)]
    rebuild = Rebuild(module, ())
    nodes: list[Node] = []
    for n, arg in enumerate(args):
        if n not in kept_args:
            nodes.append(apply(CreateToken(), loc=main.body.arg_locs[n]))
            rebuild.became[arg] = nodes[-1].results[0]
    renewed = [Value(args[n].type, None, index) for index, n in enumerate(kept_args)]
    rebuild.became.update(zip([args[n] for n in kept_args], renewed, strict=True))
    body = rebuild.region(main.body)
    region = Region(
        tuple(renewed),
        [*nodes, *body.nodes],
        tuple(body.results[n] for n in kept_results),
        body.loc,
        tuple(main.body.arg_locs[n] for n in kept_args),
    )
    function = main.restricted(region, kept_args, kept_results)
    return module.with_functions({**module.functions, "main": function})


EMPTY = TensorType((0,), BOOL)


def tokens_as_values(module: Module) -> Module:
    """The module with empty arrays in place of tokens in the signature of main."""
    main = module.functions.get("main")
    if main is None:
        return module
    body = main.body
    if not any(isinstance(v.type, TokenType) for v in (*body.args, *body.results)):
        return module
    rebuild = Rebuild(module, ())
    nodes: list[Node] = []
    args: list[Value] = []
    for n, arg in enumerate(body.args):
        is_token = isinstance(arg.type, TokenType)
        args.append(Value(EMPTY if is_token else arg.type, None, n))
        rebuild.became[arg] = args[-1]
        if is_token:
            nodes.append(apply(CreateToken(), loc=body.arg_locs[n]))
            rebuild.became[arg] = nodes[-1].results[0]
    inner = rebuild.region(body)
    # JAX passes a `bool[0]` array wherever its signature has a token, and expects one back.
    nothing = apply(Constant(Dense(np.zeros(0, np.bool_))), loc=body.loc)
    results = tuple(
        nothing.results[0] if isinstance(v.type, TokenType) else v for v in inner.results
    )
    region = Region(tuple(args), [*nodes, *inner.nodes, nothing], results, body.loc, body.arg_locs)
    function = replace(main, body=region)
    return module.with_functions({**module.functions, "main": function})
