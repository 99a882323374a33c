"""Every machine of our services: their drawings and the test of their guards are made from this list."""

from ferryman.saga.machine import Machine
from ferryman.services.payments.machine import MACHINE as PAYMENT

MACHINES: tuple[Machine, ...] = (PAYMENT,)
