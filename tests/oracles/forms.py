"""The binary forms of a program: MLIR bytecode and StableHLO's portable artifact."""

from __future__ import annotations

import base64
import contextlib
import io

from tests.oracles.process import Oracle, serve

ORACLE = Oracle("tests.oracles.forms")


def binary_forms(text: str) -> list[bytes]:
    """Bytecode, and an artifact where StableHLO alone says it all."""
    return [base64.b64decode(form) for form in ORACLE.ask(text)]


def main() -> None:
    """Answer module texts with their binary forms."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    from weft.capture.stablehlo.mlir_parser import make_context

    context = make_context()

    def answer(text: str) -> list[str]:
        with context, ir.Location.unknown():
            out = io.BytesIO()
            ir.Module.parse(text).operation.write_bytecode(out)
            forms = [out.getvalue()]
            with contextlib.suppress(ValueError):  # other dialects have no portable form
                version = stablehlo.get_current_version()
                forms.append(stablehlo.serialize_portable_artifact_str(text, version))
            return [base64.b64encode(form).decode() for form in forms]

    serve(answer)


if __name__ == "__main__":
    main()
