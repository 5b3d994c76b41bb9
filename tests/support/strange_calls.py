"""Registered operators on tensors that nobody means: they refuse them, or give what plain PyTorch gives."""

import itertools

import torch

REFUSED = (ValueError, TypeError, IndexError, RuntimeError, NotImplementedError)
"""What an operator may raise; a MemoryError, an error of struct or a ZeroDivisionError is none of these."""
PLAIN = {"batch": 2, "groups": 2, "repeats": 1, "queries": 3, "keys": 5, "width": 4, "value_width": 6}


def names():
    """Every operator that this process has registered, by the name of its arguments."""
    found = {
        name.removeprefix("antiphase::").split(".")[0] for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("antiphase::")
    }  # fmt: skip
    return sorted(found)


def schema(name):
    return getattr(torch.ops.antiphase, name).default._schema.arguments


def sample(name, sizes, mask=False, edges=False):
    """Arguments of these sizes, by name: what the documentation of the operator asks for."""
    device = "cuda" if name.startswith("triton") and torch.cuda.is_available() else "cpu"
    batch, groups, repeats, queries, keys, width, value_width = sizes.values()
    heads, made = groups * repeats, {}

    def draw(*shape):
        return torch.randn(shape, device=device)

    made["query"], made["key"] = draw(batch, 2 * heads, queries, width), draw(batch, 2 * groups, keys, width)
    made["value"], made["lam"] = draw(batch, groups, keys, value_width), draw(batch, heads, queries)
    if name.endswith("few") or name.endswith("v1_step"):
        made["lam"] = draw(1, heads, 1)
    made |= {vector: draw(width) for vector in ("q1", "k1", "q2", "k2")}
    made["mask"] = torch.rand(batch, heads, queries, keys, device=device) > 0.3 if mask else None
    made["query_edges"] = made["key_edges"] = None
    if edges:
        made |= {f"{side}_edges": torch.tensor([0, n // 2, n], dtype=torch.int32, device=device)
                 for side, n in (("query", queries), ("key", keys))}  # fmt: skip
    made |= {"longest_query": queries, "longest_key": keys, "groups": groups, "is_causal": True, "sliding_window": 0}
    made |= {"scale": 0.5, "initial": 0.2, "eps": 1e-5, "factor": 0.8, "save": True, "shared": 1}
    made["grad"], made["weight"] = draw(batch, heads, queries, value_width), draw(value_width)
    if "norm" in name:
        made["tensor"], made["grad"] = draw(batch, queries, value_width), draw(batch, queries, value_width)
    if "entropies" in name:  # (queries, keys) are (positions, vocabulary)
        made["logits"], made["grad"] = draw(queries, keys), draw(queries)
        made["targets"] = torch.full((queries,), keys // 2, device=device)
        made["statistics"] = torch.stack([made["logits"].new_zeros(queries), draw(queries)], dim=1)
        if keys:
            largest = made["logits"].amax(1)
            made["statistics"] = torch.stack([largest, (made["logits"] - largest[:, None]).exp().sum(1).log()], dim=1)
    elif name.endswith("attention_backward") and name != "blockwise_attention_backward":
        kind = name.removesuffix("_backward")
        ask = {argument.name: made.get(argument.name) for argument in schema(kind)}
        try:
            results = getattr(torch.ops.antiphase, kind)(*ask.values())
        except REFUSED:
            results = [draw(batch, heads, queries, value_width)] * 2 + [draw(batch, heads, 2, queries)]
        if kind == "native_attention":
            results = (results[0], results[1]) if len(results) == 2 else (0, draw(batch, 2 * heads, queries, 2))
            made["statistics"] = results[1]
        else:
            made |= dict(zip(("out", "second", "logsumexp"), results, strict=True))
    return {argument.name: made[argument.name] for argument in schema(name)}


def call(name, arguments):
    """The results as a list, or None where the operator refused."""
    with torch.no_grad():
        try:
            found = getattr(torch.ops.antiphase, name)(*arguments.values())
        except REFUSED:
            return None
    if name.startswith("triton") and torch.cuda.is_available():
        torch.cuda.synchronize()
    return [found] if isinstance(found, torch.Tensor) else list(found)


def formula(name, given):
    """The results of a forward operator by plain PyTorch in fp64, as the operator's documentation defines them."""
    given = {key: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
             for key, value in given.items()}  # fmt: skip
    vectors = [given.get(vector) for vector in ("q1", "k1", "q2", "k2")]
    if vectors[0] is not None:
        lam = (vectors[0] @ vectors[1]).exp() - (vectors[2] @ vectors[3]).exp() + given["initial"]
        if name == "native_lambda":
            return lam
        given["lam"] = lam
    if "logits" in given:
        return torch.nn.functional.cross_entropy(given["logits"], given["targets"], reduction="none")
    if "query" in given:
        given["tensor"] = attention(**given)
        if "eps" not in given:
            return given["tensor"]
    scale = (given["tensor"].square().mean(-1, keepdim=True) + given["eps"]).rsqrt()
    return given["factor"] * given["tensor"] * scale * given["weight"]


def attention(query, key, value, lam, mask, scale, sliding_window, query_edges=None, key_edges=None, **_):
    maps, queries, keys = query.shape[1], query.shape[2], key.shape[2]
    key, value = (t.repeat_interleave(heads // t.shape[1], 1) for t, heads in ((key, maps), (value, maps // 2)))
    if query.shape[1] != key.shape[1]:
        raise ValueError
    place = torch.arange(queries)[:, None] + keys - queries
    sees = torch.arange(keys) <= place
    if query_edges is not None:
        ends = [torch.bucketize(torch.arange(n), edges[1:], right=True) for n, edges in
                ((queries, query_edges), (keys, key_edges))]  # fmt: skip
        last = [edges[1:] for edges in (query_edges, key_edges)]
        place = torch.arange(queries) - last[0][ends[0]] + last[1][ends[0]] if queries else torch.zeros(0)
        sees = (ends[0][:, None] == ends[1]) & (torch.arange(keys) <= place[:, None])
    sees = sees.expand(len(query), maps, queries, keys)
    if mask is not None:
        sees = sees & mask.expand(len(query), maps // 2, queries, keys).repeat_interleave(2, 1)
    scores = (query @ key.mT * scale).masked_fill(~sees, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights[:, ::2] - lam[..., None].expand(*lam.shape, 1) * weights[:, 1::2]) @ value


SIZES = [
    PLAIN | dict(zip(few_sizes, values, strict=True))
    for few_sizes in [*itertools.combinations(PLAIN, 1), *itertools.combinations(PLAIN, 2)]
    for values in itertools.product((0, 1), repeat=len(few_sizes))
]


def strange(tensor):
    """The tensor as other views of the same shape: overlapping, expanded, with odd strides and beginnings."""
    found = {"negated": torch._neg_view(tensor)} if tensor.is_floating_point() else {}
    if tensor.dim() == 0:
        return found
    found["expanded"] = tensor[:1].expand(tensor.shape) if len(tensor) else tensor
    found["one number"] = (
        tensor.flatten()[:1].as_strided(tensor.shape, [0] * tensor.dim()) if tensor.numel() else tensor
    )
    wide = torch.cat([tensor, tensor], -1).flatten()
    if tensor.numel():
        found["overlapping"] = wide.as_strided(
            tensor.shape, [1] * tensor.dim(), 1 if wide.numel() > sum(tensor.shape) else 0
        )
        found["every second"] = tensor.repeat_interleave(2, -1)[..., ::2]
        found["off by one"] = torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)
    if tensor.dim() > 1:
        found["transposed"] = tensor.mT.contiguous().mT
        found["first last"] = tensor.movedim(0, -1).contiguous().movedim(-1, 0)
    return found


def wrong(tensor):
    """Other tensors in a tensor's place: foreign dtypes, devices, layouts, ranks and sizes."""
    found = [tensor.to(dtype) for dtype in (
        torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int32, torch.int64, torch.uint8,
        torch.bool, torch.float8_e4m3fn,
    ) if dtype != tensor.dtype]  # fmt: skip
    found += [tensor.to("meta"), tensor.to_sparse(), tensor[None], tensor.flatten(), tensor.flatten()[:0], tensor[:0]]
    found += [tensor[..., :0], tensor[..., :1], tensor[:1], torch.zeros((), device=tensor.device).to(tensor.dtype)]
    found += [torch.cat([tensor, tensor], -1), torch.cat([tensor, tensor])]
    if tensor.dtype in (torch.int32, torch.int64):
        found += [tensor - 2**31 + 1, tensor + 2**30, tensor.flip(0), tensor * 0 - 101]
    return found


WRONG = {
    "groups": (-1, 0, 3, 2**31, 2**62), "shared": (-1, 0, 2, 5, 2**31, 2**62),
    "sliding_window": (-1, 1, 2**31, 2**63 - 1), "longest_query": (-1, 0, 2**40),
    "longest_key": (-1, 0, 2**40), "scale": (0.0, -1.0, float("nan"), float("inf"), 1e308),
    "initial": (float("nan"), float("inf")), "eps": (0.0, -1.0, float("nan")), "factor": (float("nan"), 0.0),
}  # fmt: skip


def forms(name):
    """With and without a mask, and packed, as far as the operator takes them."""
    takes = {argument.name for argument in schema(name)}
    return [{}, *([{"mask": True}] if "mask" in takes else []), *([{"edges": True}] if "query_edges" in takes else [])]


def assert_close(found, expected, what):
    for one, other in zip(found, expected, strict=True):
        other = other.to(one)
        assert one.shape == other.shape, what
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True), what


def assert_sizes_are_served_or_refused(name, changes=SIZES):
    """Sizes of zero and one: what is served is what plain PyTorch computes."""
    served = 0
    for form, changed in itertools.product(forms(name), changes):
        sizes = changed | ({"batch": 1} if "edges" in form else {})
        torch.manual_seed(0)
        arguments = sample(name, sizes, **form)
        found = call(name, arguments)
        if found is not None and not name.endswith("backward"):
            served += 1
            assert_close(found[:1], [formula(name, arguments)], (form, sizes))
    assert served or name.endswith("backward")


def assert_memory_does_not_matter(name, sizes=PLAIN, how_many=None):
    """Overlapping, expanded and strided tensors are refused, or give what plain ones give."""
    for form in forms(name)[:how_many]:
        base = sample(name, sizes | ({"batch": 1} if "edges" in form else {}), **form)
        tensors = {key: value for key, value in base.items() if torch.is_tensor(value)}
        for key, tensor in tensors.items():
            for kind, view in strange(tensor).items():
                found = call(name, base | {key: view})
                if found is not None:
                    copy = view.clone(memory_format=torch.contiguous_format)
                    assert_close(found, call(name, base | {key: copy}), (form, key, kind))


def assert_wrong_arguments_are_errors(name, sizes=PLAIN, how_many=None):
    """Whatever one argument is, the process survives, and the error is one that callers expect."""
    for form in forms(name)[:how_many]:
        base = sample(name, sizes | ({"batch": 1} if "edges" in form else {}), **form)
        assert call(name, base) is not None
        for key, value in base.items():
            for other in wrong(value) if torch.is_tensor(value) else WRONG.get(key, ()):
                call(name, base | {key: other})
