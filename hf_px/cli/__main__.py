"""python -m hf_px.cli"""

import sys

from . import main

sys.exit(main())
