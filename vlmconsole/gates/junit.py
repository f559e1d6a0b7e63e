"""A verdict as JUnit XML: a failed gate is a failure, one that cannot be judged an error."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from vlmconsole.gates.verdict import Verdict
from vlmconsole.text.plain import inert

#: what `inert` leaves and XML 1.0 has no place for
_NO_XML = re.compile("[\ufffe\uffff]")


def junit(verdict: Verdict) -> bytes:
    """Return the XML document (UTF-8)."""
    name = verdict.plan.name if verdict.plan else "no plan"
    counts = verdict.counts
    whole = not verdict.gates  # nothing could be judged at all: still one test case, or a CI would call it green
    suite = Element(
        "testsuite",
        name=f"gates {name}",
        tests=str(len(verdict.gates) or 1),
        failures=str(counts["FAIL"]),
        errors=str(counts["CANNOT JUDGE"] or int(whole)),
    )
    if verdict.frozen is not None:
        properties = SubElement(suite, "properties")
        SubElement(properties, "property", name="verdict", value=verdict.label)
        SubElement(properties, "property", name="frozen_late", value=str(verdict.late).lower())
        if verdict.freezing is not None:
            SubElement(properties, "property", name="plan", value=verdict.freezing.text)
    if whole:
        case = SubElement(suite, "testcase", classname=verdict.run, name="evidence")
        SubElement(case, "error", message="; ".join(p.text for p in verdict.problems))
    for judged in verdict.gates:
        case = SubElement(suite, "testcase", classname=f"{verdict.run}.{judged.gate.group}", name=judged.gate.name)
        if judged.verdict == "FAIL":
            SubElement(case, "failure", message=f"measured {judged.measured:.6g}, limit {judged.limit_text}")
        elif judged.verdict == "CANNOT JUDGE":
            SubElement(case, "error", message=judged.why)
    for element in suite.iter():
        for key, value in element.attrib.items():
            element.set(key, _clean(value))
    indent(suite)
    document: bytes = tostring(suite, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _clean(text: str) -> str:
    """Text that XML 1.0 can hold, and that moves no terminal: names come from files of other people's."""
    return _NO_XML.sub("\ufffd", inert(text))
