"""The papers' values, with their places in the papers. Values that a paper only draws are not guessed from the
drawing."""

from __future__ import annotations

SKYTETHER = 'Skytether: "A Moveable Beast: Partitioning Data and Compute for Computational Storage"'
SKYHOOK = 'Skyhook: "Quantifying CPU and Network savings in Computational Storage Systems"'

#: Milliseconds for all 14,400 rows of 2,000 columns, by (rows of a slice, where): the prototype's own measurements,
#: from the design notes on the Kinetic drives (Figure 5 draws them, section 6.2).
SLICE_SHAPE_MS = {(48, "drive"): 156_529.0, (480, "drive"): 17_787.0, (48, "client"): 12_097.0, (480, "client"): 1_357.0}

#: Times that 48-row slices took of 480-row slices, as the issue that asked for these figures counts them. The four
#: figures above come to 8.8 and 8.9.
SLICE_OVERHEAD = 12.0

#: What ours may take at most.
SLICE_OVERHEAD_WANTED = 1.3

#: Times that a core of the drive (Envoy) takes of one of the client (sections 6.2 and 6.3): for slices of 48 rows of
#: 1,600 columns; for all functions.
DRIVE_SLOWER_SHAPE = 13.0
DRIVE_SLOWER = 15.0

#: First slices of a drive that took much longer than the others (section 6.3).
WARM_UP_SLICES = 5

#: Drives whose throughput equals one client processor, by the paper's reckoning (section 6.3), and drives that it
#: expects to need for the same latency (section 7).
EQUAL_THROUGHPUT = 8
EQUAL_LATENCY = 16

#: Rows that the selection of Figure 7 keeps, columns of its projections as shares of 2,000, and the share of projection
#: in the latency of both (section 6.4).
SELECTED = 0.169
PROJECTED = (0.03, 0.07, 0.14)
PROJECTION_SHARE = 0.40

#: MHz of storage servers that sufficed for the speed of a client of 2,000 MHz, by number of servers (Skyhook, section
#: 3.1); 16 could have had 600, but the kernel allowed no less than 800.
ENOUGH_MHZ = {1: 2000.0, 8: 1100.0, 16: 800.0}

#: Times that the query took when the interfaces were halved from 10 to 5 Gb/s: "more than 10" (Skyhook, section 3.2).
HALF_LINK = 10.0

VIRTUAL_OBJECTS = "Virtual Objects: computational storage without a new protocol (\"Computational storage has remained an elusive goal\")"

#: The link, and what conventional checksums reach over it in GB/s (Figure 3); the rate in Gb/s that offloaded ones pass
#: (Figure 4, "a hypothetical 100 GbE link as well"). Section "Performance and network evaluation".
LINK_GBIT, LINK_REACHED_GB, LINK_PASSED_GBIT = 40, 4.5, 100

#: Traffic that is saved ("over 99%"), and times that scrubs of Ceph, MinIO and Swift take less ("up to a 2x").
LESS_TRAFFIC, SCRUB_FASTER = 0.99, 2.0
