"""What every service needs and none should write twice: bus, consumer loop, projections, runtime, stores."""
