"""`pyarrow` expressions taken apart: the columns that they read, and the parts that can go to the drives as Substrait.

`pyarrow` has no other way to look into an expression than its pickled form, so this module reads that. It writes the
parts for the drives again over *plain* types: a text is a ``string``, however it is stored. pyarrow's Substrait has no
names for the other types. The Rust side (``plan::codec::expression``) binds an expression to the table's own types, and
keeps its meaning in Arrow.

The drives compare numbers of two types only where that is exact. (pyarrow casts them to one type, and raises where a
value of the column does not fit it. Its answers are exact too, except with decimals, which it compares as doubles.)

The reasons in `NotPortable` name types and no values: Python can't write out every value that Arrow has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Union

import pyarrow as pa
import pyarrow.compute as pc

from . import _internal

#: Members of an ``is_in`` list that are sent; a longer one is looked up here.
MAX_MEMBERS = 10_000

#: Whole numbers below this, and those of no more bits than `EXACT_BITS`, are exact as doubles.
EXACT_BELOW, EXACT_BITS = 2**53, 32

#: How deep an expression that is sent may be nested; chains of and-s and or-s count once.
MAX_DEPTH = 20

#: Limit of bytes of an expression that is sent. pyarrow repeats declarations of functions with every call, so 70
#: comparisons take about as much.
MAX_BYTES = 1 << 20

#: Type for Substrait in the place of a type that it has no name for. Such columns are only tested for nulls, or given
#: as they are.
OPAQUE = pa.int8()


class NotPortable(Exception):
    """An expression or a part of it is evaluated here and not on the drives; the text says why."""


@dataclass(frozen=True)
class Field:
    """A column, or a field within a struct column."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class Literal:
    """A value."""

    value: pa.Scalar


@dataclass(frozen=True)
class Call:
    """A call of an Arrow compute function."""

    name: str
    arguments: tuple[Node, ...]
    options: pa.StructScalar | None = None


Node = Union[Field, Literal, Call]


def parse(expression: pc.Expression) -> Node:
    """The tree of an expression.

    Raises `NotPortable` where pyarrow can't pickle it (references by number), or pickles it in a
    form that is not known here.
    """
    try:
        buffer = expression.__reduce__()[1][0]
        steps = _internal.expression_steps(bytes(buffer))
        values = pa.ipc.open_file(buffer).get_batch(0)
    except (pa.ArrowException, ValueError, NotImplementedError, IndexError, TypeError) as e:
        raise NotPortable(f"pyarrow can't take {expression} apart: {e}") from e
    at = 0

    def take(*kinds: str) -> tuple[str, str]:
        nonlocal at
        if at >= len(steps) or (kinds and steps[at][0] not in kinds):
            raise NotPortable(f"pyarrow pickles {expression} in a way that is not known here")
        at += 1
        return steps[at - 1]

    def node() -> Node:
        kind, said = take("literal", "field_ref", "nested_field_ref", "call")
        if kind == "literal":
            return Literal(values.column(int(said))[0])
        if kind == "field_ref":
            return Field((said,))
        if kind == "nested_field_ref":
            return Field(tuple(take("field_ref")[1] for _ in range(int(said))))
        arguments = []
        while at < len(steps) and steps[at][0] not in ("options", "end"):
            arguments.append(node())
        options = None
        if at < len(steps) and steps[at][0] == "options":
            options = values.column(int(take()[1]))[0]
        take("end")
        return Call(said, tuple(arguments), options)

    return node()


def columns(node: Node) -> set[str]:
    """The names of the columns that are read."""
    if isinstance(node, Field):
        return {node.path[0]}
    return set().union(*map(columns, node.arguments)) if isinstance(node, Call) else set()


def operands(node: Node, name: str) -> list[Node]:
    """The operands of a chain of calls of `name`, left to right, however it is nested."""
    found, todo = [], [node]
    while todo:
        at = todo.pop()
        if isinstance(at, Call) and at.name == name:
            todo.extend(reversed(at.arguments))
        else:
            found.append(at)
    return found


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` with the types for Substrait."""
    return pa.schema([pa.field(field.name, _told(field.type)) for field in schema])


def _told(t: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(t):
        return pa.struct([pa.field(t.field(i).name, _told(t.field(i).type)) for i in range(t.num_fields)])
    return _plain(t) or OPAQUE


def _plain(t: pa.DataType) -> pa.DataType | None:
    """The type as which values of type `t` are compared, if they can be."""
    is_ = pa.types
    if is_.is_unsigned_integer(t):
        return pa.int64()
    if is_.is_boolean(t) or is_.is_integer(t) or is_.is_float32(t) or is_.is_float64(t) or is_.is_date32(t) or is_.is_decimal128(t):
        return t
    if is_.is_string(t) or is_.is_large_string(t) or is_.is_string_view(t):
        return pa.string()
    if is_.is_binary(t) or is_.is_large_binary(t) or is_.is_binary_view(t):
        return pa.binary()
    if is_.is_timestamp(t):
        return pa.timestamp("us", t.tz and "UTC")
    return t if t == pa.time64("us") else None


#: A part of an expression in its portable form, and its type; None for one that can't be compared.
Typed = tuple[pc.Expression, "pa.DataType | None"]

_COMPARE: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
}

_ARITHMETIC: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "add": lambda a, b: a + b,
    "add_checked": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "subtract_checked": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "multiply_checked": lambda a, b: a * b,
}

_TEXT = {"starts_with": pc.starts_with, "ends_with": pc.ends_with, "match_substring": pc.match_substring}


class Writer:
    """Writes expressions over the columns of `schema` in the form that can travel."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._depth = 0

    def condition(self, node: Node) -> pc.Expression:
        """A truth value. Raises `NotPortable`."""
        expression, t = self.typed(node)
        if t != pa.bool_():
            raise NotPortable(f"{expression} is no truth value")
        return expression

    def typed(self, node: Node) -> Typed:
        """Any expression. Raises `NotPortable`."""
        if self._depth > MAX_DEPTH:
            raise NotPortable(f"what is nested deeper than {MAX_DEPTH} stays here")
        self._depth += 1
        try:
            return self._typed(node)
        finally:
            self._depth -= 1

    def _typed(self, node: Node) -> Typed:
        if isinstance(node, Field):
            return pc.field(*node.path), _plain(self._type(node))
        if isinstance(node, Literal):
            return pc.scalar(_value(node)), _value(node).type
        if node.name in _COMPARE:
            return self._compare(node), pa.bool_()
        if node.name in _ARITHMETIC:
            return self._arithmetic(node), pa.float64()
        if node.name in ("and_kleene", "or_kleene"):
            parts = [self.condition(part) for part in operands(node, node.name)]
            return joined(parts, node.name), pa.bool_()
        write = getattr(self, f"_{node.name}", None) if node.name in _OTHERS else None
        if write is None:
            raise NotPortable(f"the function {node.name} stays here")
        if node.name == "cast":
            return write(node)
        return write(node), pa.bool_()

    def _type(self, node: Field) -> pa.DataType:
        t = self._schema.field(node.path[0]).type
        for name in node.path[1:]:
            if not pa.types.is_struct(t) or t.get_field_index(name) < 0:
                raise NotPortable(f"{'.'.join(node.path)} is no field of a struct")
            t = t.field(name).type
        return t

    def _compare(self, node: Call) -> pc.Expression:
        write = _COMPARE[node.name]
        left, right = node.arguments
        if isinstance(left, Literal) and isinstance(right, Literal):
            raise NotPortable("two literals are compared here")
        if isinstance(left, Literal) or isinstance(right, Literal):
            turned = isinstance(left, Literal)
            expression, value = self._beside(right if turned else left, left if turned else right)
            return write(value, expression) if turned else write(expression, value)
        (a, s), (b, t) = self.typed(left), self.typed(right)
        if s is None or t is None:
            raise NotPortable(f"{a} and {b} are of types that are compared here")
        if s != t:
            if pa.types.is_integer(s) and pa.types.is_integer(t):
                common = pa.int64()
            elif _is_number(s) and _is_number(t) and self._bits(left) <= EXACT_BITS and self._bits(right) <= EXACT_BITS:
                common = pa.float64()
            else:
                raise NotPortable(f"{s} and {t} are compared here")
            a, b = (e if u == common else e.cast(common, safe=False) for e, u in ((a, s), (b, t)))
        return write(a, b)

    def _bits(self, node: Node) -> int:
        """How many bits the whole numbers have that `node` gives; 0 where it gives others."""
        while isinstance(node, Call) and node.name == "cast":
            # Those that travel only widen.
            (node,) = node.arguments
        t = self._type(node) if isinstance(node, Field) else None
        return t.bit_width if t is not None and pa.types.is_integer(t) else 0

    def _beside(self, node: Node, literal: Literal) -> tuple[pc.Expression, pa.Scalar]:
        """An expression and a literal as a value of the same type, for a comparison."""
        expression, t = self.typed(node)
        if t is None:
            raise NotPortable(f"{expression} is of a type that is compared here")
        value = _exact(literal.value, t)
        if value is None and _is_number(t) and _is_number(literal.value.type):
            # The value does not fit the column's type: 1.5 for whole numbers, 0.1 for narrow floats.
            value = _exact(literal.value, pa.float64())
            expression = expression.cast(pa.float64(), safe=False)
            # Longer whole numbers are rounded, which can't take them past a value that is less than they must
            # be to be rounded at all.
            if value is not None and self._bits(node) > EXACT_BITS and not abs(value.as_py()) < EXACT_BELOW:
                value = None
        if value is None:
            raise NotPortable(f"a literal of type {literal.value.type} is no exact {t}")
        if pa.types.is_floating(value.type) and value.as_py() != value.as_py():
            raise NotPortable("comparisons with NaN stay here")
        return expression, value

    def _arithmetic(self, node: Call) -> pc.Expression:
        found: list[Any] = []
        for argument in node.arguments:
            if isinstance(argument, Literal):
                value = _exact(argument.value, pa.float64())
                if value is None or not _is_number(argument.value.type):
                    raise NotPortable(f"a literal of type {argument.value.type} is no exact double")
                found.append(value)
                continue
            expression, t = self.typed(argument)
            if t != pa.float64():
                raise NotPortable(f"arithmetic over {t} stays here: on the drives it overflows otherwise")
            found.append(expression)
        return _ARITHMETIC[node.name](*found)

    def _invert(self, node: Call) -> pc.Expression:
        return ~self.condition(node.arguments[0])

    def _is_null(self, node: Call) -> pc.Expression:
        expression, t = self.typed(node.arguments[0])
        nan = node.options is not None and node.options["nan_is_null"].as_py()
        null = expression.is_null()
        return null | expression.is_nan() if nan and t is not None and pa.types.is_floating(t) else null

    def _is_valid(self, node: Call) -> pc.Expression:
        return self.typed(node.arguments[0])[0].is_valid()

    def _is_nan(self, node: Call) -> pc.Expression:
        expression, t = self.typed(node.arguments[0])
        if t is None or not pa.types.is_floating(t):
            raise NotPortable(f"whether {expression} is NaN is seen here")
        return expression.is_nan()

    def _is_in(self, node: Call) -> pc.Expression:
        member, null = self._members(node)
        expression = self.typed(node.arguments[0])[0]
        # Without a null in the list a null is no member, where Substrait leaves it open.
        known = expression.is_valid() if member is None else joined([expression.is_valid(), member], "and_kleene")
        if null:
            return expression.is_null() if member is None else expression.is_null() | known
        return pc.scalar(False) if member is None else known

    def _members(self, node: Call) -> tuple[pc.Expression | None, bool]:
        """Whether the argument is in the list (open for a null; None for a list without a value), and
        whether a null is in it."""
        expression, t = self.typed(node.arguments[0])
        if node.options is None or t is None:
            raise NotPortable(f"{expression} is of a type that is looked up here")
        matching = node.options["null_matching_behavior"].as_py()
        if matching not in (0, 1):
            raise NotPortable("this way of matching nulls stays here")
        members = node.options["value_set"].values
        null = matching == 0 and members.null_count > 0
        if len(members) > MAX_MEMBERS:
            raise NotPortable(f"a list of {len(members)} members stays here")
        if pa.types.is_floating(t):
            raise NotPortable("floats are looked up here")
        members = members.drop_null()
        if len(members) == 0:
            return None, null
        values = [_exact(value, t) for value in members]
        if any(value is None for value in values):
            raise NotPortable(f"the list holds other than exact {t}")
        # pyarrow wants the list in the type that the argument has.
        return expression.isin(pa.array(values, t)), null

    def _if_else(self, node: Call) -> pc.Expression:
        """Only as DuckDB writes IN: ``if_else(is_valid(x), is_in(x, list), null)``, which leaves a null open."""
        given, chosen, other = node.arguments
        match = (
            isinstance(given, Call)
            and given.name == "is_valid"
            and isinstance(chosen, Call)
            and chosen.name == "is_in"
            and chosen.arguments == given.arguments
            and isinstance(other, Literal)
            and not other.value.is_valid
        )
        member = self._members(chosen)[0] if match else None
        if member is None:
            raise NotPortable("the function if_else stays here")
        return member

    def _text(self, node: Call) -> pc.Expression:
        expression, t = self.typed(node.arguments[0])
        if t != pa.string() or node.options is None or node.options["ignore_case"].as_py():
            raise NotPortable(f"{node.name} of this kind stays here")
        return _TEXT[node.name](expression, node.options["pattern"].as_py())

    _starts_with = _ends_with = _match_substring = _text

    def _cast(self, node: Call) -> Typed:
        expression, t = self.typed(node.arguments[0])
        to = node.options["to_type"].type if node.options is not None else None
        if t is None or to is None:
            raise NotPortable("this cast stays here")
        if t == to:
            return expression, t
        narrow = t in (pa.int8(), pa.int16(), pa.int32())
        if not (narrow and to in (pa.int64(), pa.float64()) or t == pa.float32() and to == pa.float64()):
            raise NotPortable(f"the cast from {t} to {to} stays here")
        # Nothing is lost, so that it does not matter that Substrait has only casts that may lose something.
        return expression.cast(to, safe=False), to


_OTHERS = {"invert", "is_null", "is_valid", "is_nan", "is_in", "if_else", "starts_with", "ends_with", "match_substring", "cast"}


def joined(parts: list[pc.Expression], name: str) -> pc.Expression:
    """`parts` joined by ``and_kleene`` or ``or_kleene``, balanced: protobuf readers accept a
    hundred nested messages."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0] if len(pair) == 1 else pair[0] & pair[1] if name == "and_kleene" else pair[0] | pair[1] for pair in pairs]
    return parts[0]


def message(expressions: list[pc.Expression], names: list[str], schema: pa.Schema) -> bytes:
    """A Substrait ``ExtendedExpression`` over the columns of `schema`. Raises `NotPortable`."""
    try:
        from pyarrow import substrait

        written = bytes(substrait.serialize_expressions(expressions, names, schema))
    except (pa.ArrowException, ImportError) as e:
        raise NotPortable(f"pyarrow can't write it as Substrait: {e}") from e
    if len(written) > MAX_BYTES:
        raise NotPortable(f"{len(written)} bytes of Substrait are too many to be sent")
    return written


def _is_number(t: pa.DataType) -> bool:
    return pa.types.is_integer(t) or pa.types.is_float32(t) or pa.types.is_float64(t)


def _value(node: Literal) -> pa.Scalar:
    t = _plain(node.value.type)
    value = _exact(node.value, t) if t is not None else None
    if value is None:
        raise NotPortable(f"a literal of type {node.value.type} stays here")
    return value


def _exact(value: pa.Scalar, t: pa.DataType) -> pa.Scalar | None:
    """`value` as a `t`, if nothing is lost; None otherwise, and for a null."""
    if not value.is_valid:
        return None
    if pa.types.is_dictionary(value.type):
        value = value.value
    plain = _plain(value.type)
    if plain is None or pa.types.is_timestamp(plain) and pa.types.is_timestamp(t) and (plain.tz is None) != (t.tz is None):
        return None
    # Between kinds only what pyarrow does by itself, and nothing that parses texts. (Floats and decimals
    # it compares as doubles.)
    alike = plain == t or _is_number(plain) and _is_number(t) or _is_time(plain) and _is_time(t)
    if not alike and not (pa.types.is_decimal(t) and (pa.types.is_decimal(plain) or pa.types.is_integer(plain))):
        return None
    try:
        cast = value.cast(t)
        back = cast.cast(value.type)
    except (pa.ArrowException, ValueError):
        return None
    nan = pa.types.is_floating(t) and cast.as_py() != cast.as_py()
    return cast if nan or back.equals(value) else None


def _is_time(t: pa.DataType) -> bool:
    return pa.types.is_timestamp(t) or pa.types.is_date32(t)
