"""The ICRC of frames, by scapy and zlib: one frame in hexadecimal a line in, one ICRC a line out.

IPv4 is scapy's own computation; for IPv6 and RoCE v1 it has none, so that the masking is done here on
scapy's fields, from the standard (IBTA vol. 1, annexes A16 and A17).
"""
import sys
import zlib

from scapy.contrib.roce import BTH, GRH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether


def masked(frame):
    if IPv6 in frame:
        top = frame[IPv6].copy()
        top.tc, top.fl, top.hlim = 0xFF, 0xFFFFF, 0xFF
        top[UDP].chksum = 0xFFFF
    else:
        top = frame[GRH].copy()
        top.tclass, top.flowlabel, top.hoplmt = 0xFF, 0xFFFFF, 0xFF
    top[BTH].fecn, top[BTH].becn, top[BTH].resv6 = 1, 1, 0x3F
    return zlib.crc32(b"\xff" * 8 + bytes(top)[:-4]).to_bytes(4, "little").hex()


for line in sys.stdin:
    frame = Ether(bytes.fromhex(line))
    if IP in frame:
        del frame[BTH].icrc
        print(bytes(frame)[-4:].hex())
    else:
        print(masked(frame))
