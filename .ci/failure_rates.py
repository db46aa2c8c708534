"""How often each test failed in the rounds of .ci/stress, whose reports are in the folder given."""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

runs = collections.Counter()
failures = collections.Counter()
for report in sorted(pathlib.Path(sys.argv[1]).glob("*.xml")):
    way = report.stem.split("-")[0]
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        test = f"{case.get('classname')} {case.get('name')}"
        runs[test, way] += 1
        failures[test, way] += case.find("failure") is not None or case.find("error") is not None

tests = sorted({test for test, _ in runs}, key=lambda test: (-failures[test, "alone"] - failures[test, "busy"], test))
if not tests:
    sys.exit("stress: no test has such a name")
print("failed alone  beside two busy loops")
for test in tests:
    cells = [f"{failures[test, way]} of {runs[test, way]}" for way in ("alone", "busy")]
    print(f"{cells[0]:>12}  {cells[1]:>21}  {test}")
