from __future__ import annotations

from rmqha.broker.replication.nameserver_link import RETRY_MS, AdvertisedState, NameServerRegistration, RegistrationStep
from rmqha.model.offset import BrokerId

MASTER = BrokerId(0)
SLAVE = BrokerId(2)


def done(registration: NameServerRegistration, now_ms: int, advertised: AdvertisedState) -> RegistrationStep | None:
    step = registration.next(now_ms, advertised)
    if step is not None:
        registration.done(now_ms, step, advertised)
    return step


def test_register_then_heartbeats_then_the_period() -> None:
    registration, advertised = NameServerRegistration(1000, 30_000), AdvertisedState(MASTER, 1)
    assert done(registration, 0, advertised) is RegistrationStep.REGISTER
    assert registration.known_as == MASTER
    assert done(registration, 999, advertised) is None
    assert registration.deadline_ms(999) == 1000
    steps = [done(registration, now_ms, advertised) for now_ms in range(1000, 31_000, 1000)]
    assert steps == [RegistrationStep.HEARTBEAT] * 29 + [RegistrationStep.REGISTER]


def test_news_is_told_at_once() -> None:
    registration = NameServerRegistration(1000, 30_000)
    done(registration, 0, AdvertisedState(SLAVE, 1))
    assert done(registration, 1, AdvertisedState(MASTER, 2)) is RegistrationStep.REGISTER
    assert done(registration, 2, AdvertisedState(MASTER, 3)) is RegistrationStep.REGISTER
    assert done(registration, 3, AdvertisedState(MASTER, 3)) is None


def test_fenced_is_taken_off_the_list_and_stays_off() -> None:
    registration = NameServerRegistration(1000, 30_000)
    assert done(registration, 0, AdvertisedState(None, 1)) is None
    done(registration, 0, AdvertisedState(MASTER, 1))
    assert done(registration, 1, AdvertisedState(None, 2)) is RegistrationStep.UNREGISTER
    assert registration.known_as is None
    assert done(registration, 5000, AdvertisedState(None, 2)) is None
    assert done(registration, 5000, AdvertisedState(SLAVE, 3)) is RegistrationStep.REGISTER


def test_an_unreachable_name_server_is_tried_again_after_a_pause_or_at_news() -> None:
    registration, advertised = NameServerRegistration(1000, 30_000), AdvertisedState(MASTER, 1)
    registration.failed(0, advertised)
    assert registration.next(RETRY_MS - 1, advertised) is None
    assert registration.next(RETRY_MS - 1, AdvertisedState(MASTER, 2)) is RegistrationStep.REGISTER
    assert registration.next(RETRY_MS, advertised) is RegistrationStep.REGISTER


def test_an_unregistration_that_fails_is_repeated() -> None:
    registration, fenced = NameServerRegistration(1000, 30_000), AdvertisedState(None, 2)
    done(registration, 0, AdvertisedState(MASTER, 1))
    registration.failed(1, fenced)
    assert registration.next(2, fenced) is None
    assert registration.next(1 + RETRY_MS, fenced) is RegistrationStep.UNREGISTER


def test_a_lost_connection_means_registering_anew() -> None:
    registration, advertised = NameServerRegistration(1000, 30_000), AdvertisedState(MASTER, 1)
    done(registration, 0, advertised)
    registration.lost()
    assert done(registration, 1, advertised) is RegistrationStep.REGISTER
