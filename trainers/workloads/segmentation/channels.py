"""The 16 fields of a climate sample, and its classes, in the order used by Kurth et al. and DeepCAM.

Order and units are as in the released label script (azrael417/ClimDeepLearn,
semanticsegm/create_multichannel_cropped_labels.py) and the CAM5 history files that it reads.
"""

from __future__ import annotations

UNITS = {
    "TMQ": "kg/m2",
    "U850": "m/s",
    "V850": "m/s",
    "UBOT": "m/s",
    "VBOT": "m/s",
    "QREFHT": "kg/kg",
    "PS": "Pa",
    "PSL": "Pa",
    "T200": "K",
    "T500": "K",
    "PRECT": "m/s",
    "TS": "K",
    "TREFHT": "K",
    "Z1000": "m",
    "Z200": "m",
    "ZBOT": "m",
}
"""The channels in order, each with its unit.

TMQ: precipitable water; U, V: eastward and northward wind at 850 hPa and in the lowest layer; QREFHT: specific
humidity at 2 m; PS, PSL: pressure at the surface and reduced to sea level; T200, T500: temperature at 200 and
500 hPa; PRECT: precipitation; TS, TREFHT: temperature of the surface and at 2 m; Z1000, Z200: height of the
1000 and 200 hPa surfaces; ZBOT: height of the lowest layer.
"""

CHANNELS = tuple(UNITS)
"""The names of the 16 channels."""

CLASSES = ("background", "tropical cyclone", "atmospheric river")
"""The classes; a pixel's label is the index of its class."""

BACKGROUND, CYCLONE, RIVER = range(3)
