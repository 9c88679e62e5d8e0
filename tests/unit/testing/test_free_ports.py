"""A reserved port goes to no other process, and the process it is meant for can listen on it."""

import socket

import pytest

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.free_ports import PortReservation

HOST = "127.0.0.1"


def test_no_port_is_given_twice() -> None:
    reservations = [PortReservation(HOST, 6) for _ in range(50)]
    try:
        ports = [port for reservation in reservations for port in reservation.ports]
        assert len(set(ports)) == 300
    finally:
        for reservation in reservations:
            reservation.close()


def test_another_socket_can_listen_on_a_port_that_was_handed_over() -> None:
    reservation = PortReservation(HOST, 2)
    reservation.hand_over()
    address = (HOST, reservation.ports[0])
    with socket.create_server(address) as listener, socket.create_connection(address, timeout=5) as client:
        accepted, peer = listener.accept()
        accepted.close()
        assert peer == client.getsockname()
    reservation.close()


def test_half_of_the_ports_are_the_ones_asked_for() -> None:
    free = PortReservation(HOST, 2)
    first = free.ports[0]
    free.close()
    reservation = PortReservation(HOST, 2, first)
    assert reservation.ports[0] == first
    assert reservation.ports[1] != first
    reservation.close()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=f"Cannot listen on 127.0.0.1:{port}.*Choose another port"):
            PortReservation(HOST, 2, port)
