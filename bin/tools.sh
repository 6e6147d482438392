#!/bin/sh
# Stands where RocketMQ's guides start its examples in Java, and says what does the same here.

case $1 in
*.Producer | *.producer.*) same="mqadmin sendMessage -n localhost:9876 -t TopicTest -p 'Hello RocketMQ'" ;;
*.Consumer | *.PushConsumer | *.consumer.*) same="mqadmin consumeMessage -n localhost:9876 -t TopicTest" ;;
*) same="a program in Python (docs/client.md)" ;;
esac
echo "tools.sh: ${1:-RocketMQ's examples}: RouteKeeper has no Java classes; instead use $same" >&2
exit 2
