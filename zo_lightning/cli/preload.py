"""What a life imports, imported once: the process that lives are forked from loads this module and does nothing else.

No tensor is touched and no kernel runs here: a fork of a process that has threads would hang.
"""

from zo_lightning.cli.terminal import quiet_libraries

quiet_libraries()

import numba  # noqa: E402, F401
import transformers.models.llama.modeling_llama  # noqa: E402, F401

import zo_lightning.backends.dense  # noqa: E402
import zo_lightning.backends.fake  # noqa: E402
import zo_lightning.callbacks.bank_summary  # noqa: E402
import zo_lightning.callbacks.interrupt_checkpoint  # noqa: E402
import zo_lightning.callbacks.journal_keeper  # noqa: E402
import zo_lightning.callbacks.throughput  # noqa: E402
import zo_lightning.cli.lightning_errors  # noqa: E402
import zo_lightning.cli.report  # noqa: E402
import zo_lightning.cli.session  # noqa: E402
import zo_lightning.cli.train  # noqa: E402
import zo_lightning.data  # noqa: E402
import zo_lightning.directions  # noqa: E402
import zo_lightning.drill.acknowledge  # noqa: E402
import zo_lightning.estimators  # noqa: E402
import zo_lightning.kernels.philox  # noqa: E402
import zo_lightning.models  # noqa: E402
import zo_lightning.queries  # noqa: E402
import zo_lightning.strategies  # noqa: E402
import zo_lightning.tasks  # noqa: E402
import zo_lightning.updates  # noqa: E402, F401
