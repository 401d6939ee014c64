"""Steps of a molecular dynamics simulation with OpenMM: charged particles with PME, whose long-range forces are
computed in a stream of their own.

    openmm_steps.py [--particles 8000] [--steps 4000] [--devices 0]     (0,1: on two devices)

Prints "name value" lines: microseconds of a step. Each step waits for one event, then the host reads a number in
page-locked memory. Needs OpenMM and its plugin for CUDA (PyPI: openmm, OpenMM-CUDA-13).
"""

import argparse
import time

import numpy
import openmm
from openmm import unit

APART = 0.35  # nm


def system_of(side):
    system, force = openmm.System(), openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.PME)
    force.setCutoffDistance(0.9)
    for i in range(side ** 3):
        system.addParticle(39.9)
        force.addParticle(0.2 if i % 2 else -0.2, 0.3, 0.5)
    system.addForce(force)
    box = side * APART
    system.setDefaultPeriodicBoxVectors((box, 0, 0), (0, box, 0), (0, 0, box))
    return system


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--devices", default="0")
    arguments = parser.parse_args()
    side = round(arguments.particles ** (1 / 3))
    integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.002)
    integrator.setRandomNumberSeed(1)
    context = openmm.Context(system_of(side), integrator, openmm.Platform.getPlatformByName("CUDA"),
                             {"DeviceIndex": arguments.devices, "Precision": "mixed"})
    context.setPositions(numpy.indices((side,) * 3).reshape(3, -1).T * APART)
    context.setVelocitiesToTemperature(300, 1)
    integrator.step(arguments.steps // 2)
    context.getState(energy=True)
    begin = time.perf_counter()
    integrator.step(arguments.steps)
    energy = context.getState(energy=True).getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
    elapsed = time.perf_counter() - begin
    if not numpy.isfinite(energy):
        raise SystemExit(f"the potential energy is {energy}")
    print("openmm_step_us", elapsed / arguments.steps * 1e6)


if __name__ == "__main__":
    main()
