"""Pages: what a run, a sweep, a comparison, a calibration or a validation gave, as one HTML file that needs no network.

    write.py     sections as data → one file
    sections.py  the sections that pages are made of
    sweep.py …   one file for each kind of result: which sections, in which order

The drawing is done in the reader's browser by assets/*.js from the same numbers that the tables hold.
"""
