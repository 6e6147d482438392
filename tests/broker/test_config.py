from __future__ import annotations

import pytest

from routekeeper.broker.config import LIVE_KEYS, BrokerConfig, apply_properties, parse_delay_levels
from routekeeper.broker.errors import SettingError


def test_properties_round_trip_through_the_config() -> None:
    config = BrokerConfig(broker_name="broker-x", auto_create_topic_enable=False, log_file_size=5_000_000)
    again, unknown = apply_properties(BrokerConfig(), config.to_properties())
    assert again == config
    assert unknown == ()


def test_unknown_keys_are_named_and_skipped() -> None:
    config, unknown = apply_properties(
        BrokerConfig(), {"transferMsgByHeap": "true", "brokerName": "b", "acl": "x"}
    )
    assert config.broker_name == "b"
    assert unknown == ("acl", "transferMsgByHeap")


def test_values_are_trimmed() -> None:
    config, _ = apply_properties(BrokerConfig(), {"brokerName": " b ", "listenPort": "1 "})
    assert (config.broker_name, config.listen_port) == ("b", 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"listenPort": "x"}, "listenPort='x' is not a whole number"),
        ({"listenPort": "1_0"}, "listenPort='1_0' is not a whole number"),
        ({"listenPort": "\u0661"}, "listenPort='\u0661' is not a whole number"),
        ({"listenPort": "9" * 4000}, "listenPort='9{80}' is not a whole number"),
        ({"brokerName": "a\nb"}, "brokerName='a.{2}b': allowed are printable characters on one line"),
        ({"brokerIP1": "\ud800"}, "allowed are printable characters"),
        ({"timerDivisor": "x"}, "timerDivisor='x' is not a number"),
        ({"timerDivisor": "nan"}, "timerDivisor='nan' is not a number"),
        ({"timerDivisor": "0"}, "timerDivisor=0.0 is outside 1..1000"),
        ({"autoCreateTopicEnable": "yes"}, "neither true nor false"),
        ({"listenPort": "70000"}, "listenPort=70000 is outside 0..65535"),
        ({"brokerId": "1"}, "slaves need replication"),
        ({"brokerName": "bad name"}, "brokerName='bad name'"),
        ({"brokerClusterName": ".."}, r"brokerClusterName='\.\.'"),
        ({"namesrvAddr": "127.0.0.1"}, "'127.0.0.1' is not host:port"),
        ({"namesrvAddr": "a:1;http://b:9876"}, "'http://b:9876' has a scheme"),
        ({"namesrvAddr": "a:0"}, "the port from 1 to 65535"),
        ({"namesrvAddr": "a" * 300 + ":1"}, "of at most 261 characters"),
        ({"flushDiskType": "NEVER"}, "allowed are ASYNC_FLUSH, SYNC_FLUSH"),
        ({"messageDelayLevel": "1s 5x"}, "'5x'"),
        ({"mappedFileSizeCommitLog": "1000"}, "must hold maxMessageSize"),
        ({"messageDelayLevel": "9" * 5000 + "d"}, "is above 366d"),
        ({"messageDelayLevel": "1s " * 2000}, "names 2000 levels, allowed are 1..1024"),
        ({"aclEnable": "true"}, "aclEnable=true needs aclFile=FILE, or ROCKETMQ_HOME"),
        ({"aclFile": "plain_acl.yml"}, "aclFile=plain_acl.yml needs aclEnable=true"),
        ({"adminNetworks": "office"}, "adminNetworks: 'office' is no network"),
        ({"adminNetworks": "10.0.0.1/8"}, "adminNetworks: '10.0.0.1/8' has bits set behind its prefix"),
        ({"brokerRole": "SLAVE"}, "brokerRole=SLAVE: only ASYNC_MASTER can be served"),
        ({"brokerRole": "SYNC_MASTER"}, "brokerRole=SYNC_MASTER: only ASYNC_MASTER can be served"),
        ({"storePathCommitLog": "/a,/b"}, "one directory is supported"),
        ({"httpListen": "9880"}, "httpListen=9880 is not HOST:PORT with a port of 0 to 65535, or off"),
        ({"httpListen": "a:65536"}, "with a port of 0 to 65535, or off"),
        ({"tls.enable": "yes"}, "tls.enable='yes' is neither true nor false"),
        (
            {"tls.enable": "true", "tls.client.keyPath": "k"},
            r"tls\.client\.keyPath needs tls\.client\.certPath",
        ),
        ({"deleteWhen": "24"}, "'24' is no hour"),
        ({"deleteWhen": "04;"}, "'' is no hour"),
        ({"diskMaxUsedSpaceRatio": "99"}, "is outside 10..95"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_setting_is_refused_with_its_name(values: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        apply_properties(BrokerConfig(), values)[0].validate()


@pytest.mark.parametrize(
    ("period_ms", "divisor", "seconds"),
    [
        (30_000, 1, 30.0),
        (1000, 1, 10.0),
        (600_000, 1, 60.0),
        (30_000, 10, 3.0),
        (1000, 10, 1.0),
        (30_000, 2.5, 12.0),
    ],
)
def test_registration_period_is_clamped_then_divided(period_ms: int, divisor: float, seconds: float) -> None:
    config = BrokerConfig(register_period_ms=period_ms, timer_divisor=divisor)
    assert config.register_period_s == seconds


def test_nameserver_addresses_are_split_and_unique() -> None:
    config = BrokerConfig(namesrv_addr="a:1; b:2;;a:1")
    assert config.namesrv_addrs == ("a:1", "b:2")


def test_default_delay_levels_are_the_documented_ones() -> None:
    levels = BrokerConfig().delay_levels_ms
    assert len(levels) == 18
    assert levels[:3] == (1000, 5000, 10_000)
    assert levels[-1] == 7_200_000
    assert parse_delay_levels("1d") == (86_400_000,)


def test_no_path_and_no_address_of_its_own_may_be_changed_over_the_wire() -> None:
    assert not LIVE_KEYS & {"storePathRootDir", "brokerIP1", "bindAddress", "listenPort"}
    assert "brokerPermission" in LIVE_KEYS
